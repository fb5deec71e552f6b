// Package test runs the one binary whole: "microlet up" with all its services, a runtime that is faked and
// an apiserver that isn't there, in both placements.
//
// It shows what the supervisor promises of the real services: their identities, their return after a
// kill, their end with it, and what "microlet status" says. What they do for pods is shown elsewhere.
package test
