// Package compose shows a node whose services are containers, each started by Docker.
package compose
