// Package nfs shows volumes of a real NFS server, on a node that has a machine of its own: that machine's kernel is the
// client. The server runs, hangs and dies.
package nfs
