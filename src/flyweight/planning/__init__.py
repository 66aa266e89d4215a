"""What `flyweight plan` and `flyweight advise` compute before anything is loaded: memory, speed,
cost and energy of a model on a machine.
"""
