"""Whether a constraint can be kept to, found out in processes that may be killed."""
