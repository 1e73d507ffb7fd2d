"""Training of classifiers: data loading, loss, metrics, --plan and --quicktest."""
