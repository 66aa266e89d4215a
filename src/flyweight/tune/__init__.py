"""`flyweight tune`: finds the settings of an engine that serve a workload best within targets."""
