// Package keyring finds the credentials for an image pull.
//
// It reads Secrets of the types kubernetes.io/dockerconfigjson and kubernetes.io/dockercfg, and the node's own
// docker configuration files. For an image repository it returns the credentials to try, in order. The match is the
// kubelet's: by host, where each label may be a glob, by port, and by a prefix of the path, the most specific entry
// first. An entry for docker.io matches names without a host only if no other entry matches. Errors and log lines
// never contain a credential.
package keyring
