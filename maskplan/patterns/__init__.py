"""Patterns on the latent grid of a video, and token orders; `maskplan.video` names them all."""
