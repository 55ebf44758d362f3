"""The contract: models of InferenceService and InferenceRevision, the runtime config file, labels, headers.

Everything two components must agree on to the letter lives here once and is imported, never retyped.
"""
