"""What other engines (vLLM, SGLang, llama.cpp) say about their load, in their own words."""
