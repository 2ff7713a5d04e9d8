"""EntityNLM as its ACL 2020 code has it; the older "master" code is another model."""
