"""FETCHES: models by their names on the Hugging Face Hub, from its cache or over the network.

Invariant: nothing is opened here, and nothing that can run code is downloaded; what is in the cache
under its final name is whole.  The only package that names `huggingface_hub`, and it imports that
when a Hub name is first looked up.
"""
