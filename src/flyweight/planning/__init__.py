"""What `flyweight plan` and `flyweight advise` compute: memory, speed, cost and energy of a model on
a machine, before anything is loaded.
"""
