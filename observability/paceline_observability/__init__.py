"""What a person on call sees: the catalogue of metrics with its page, and whether a service keeps what it promises.

Values in, values out. What a metric is called is said in `paceline_crds.metrics`, which every component may read;
what is made of all of them together is here.
"""
