"""The sink that sends records to a collector over OTLP/gRPC."""
