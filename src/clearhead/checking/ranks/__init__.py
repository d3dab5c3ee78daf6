"""An attention that many ranks compute together: called on each of them, and held against one process."""
