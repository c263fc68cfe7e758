"""Proximal policy optimisation (Schulman et al. 2017): see the README of this folder."""
