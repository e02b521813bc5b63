"""The weights probe: are the files of a model whole, the published ones, and finite in every value?

Files are read as bytes and never unpickled. Needs numpy, and nothing else beyond the standard library.
"""
