"""Topic models: latent Dirichlet allocation with its proportions integrated out."""
