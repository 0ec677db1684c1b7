"""Scorers: how good is a candidate?"""
