// Package keyring finds the credentials that an image is pulled with.
//
// Its inputs are Secrets of the types kubernetes.io/dockerconfigjson and
// kubernetes.io/dockercfg, and the node's own docker configuration files. Its output is,
// for the name of an image's repository, the credentials to try, in order.
//
// It guarantees that the match is the kubelet's: by host, where each label may be a
// glob, by port and by a prefix of the path, the more specific entries first; an entry
// for docker.io serves the names without a host only when no other entry matched. It
// never puts a credential into an error or a log line.
package keyring
