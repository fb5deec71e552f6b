// Package test runs stats alone against a real bus and a fake runtime.
package test
