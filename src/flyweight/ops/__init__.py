"""The backend interface (`base`), its executable specification (`reference`), and the native CPU
backend (`cpu`).
"""
