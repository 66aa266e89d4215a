"""flyweight: LLM inference in Python over native kernels."""
