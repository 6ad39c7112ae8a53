"""Names that the command line needs without torch."""

KINDS = ("leak", "labels", "unreadable", "classes", "duplicate", "blank", "tiny", "dark", "blurred", "size")
