"""The command line without torch: errors, parser, flags and their help, devices."""
