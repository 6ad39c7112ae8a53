"""Many runs side by side: the runner, the record, the findings."""
