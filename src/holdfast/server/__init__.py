"""The agent server: conversations of many clients over one store (`host`), and the HTTP app over
that (`app`). Nothing is loaded here."""
