// Package docker runs a Docker daemon for a test, in namespaces of its own.
package docker
