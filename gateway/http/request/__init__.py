"""The common steps of every request: its route's description, authentication, forms, errors and rate limits. This
package knows no specific route."""
