"""Does each GPU by itself copy and compute correctly?"""
