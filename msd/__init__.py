"""Feed the training of language and vision-language models from hundreds of sources."""
