"""The commands of the command line, one module each: a report, and how to show it."""
