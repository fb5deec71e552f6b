// Package services shows that the services of the node agent are apart: what is killed, stopped or broken into harms
// no other.
package services
