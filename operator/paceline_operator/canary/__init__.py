"""The output canary: whether every replica of a revision answers a fixed question as the others do and as before; and
where one does not, whether its tokeniser, its model or its cache is to blame. Only hashes of answers are seen here.
"""
