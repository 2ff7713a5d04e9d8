"""EntityNLM, as in its ACL 2020 code; the older "master" code is another model."""
