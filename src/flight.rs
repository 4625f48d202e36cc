//! Single flight.
