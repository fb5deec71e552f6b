package service

// LocalProgram is the name of the program that has only the services that need no API server. "microlet up" runs them
// from the one beside its own program.
const LocalProgram = "microlet-local"
