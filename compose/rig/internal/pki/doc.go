// Package pki creates the certificates, keys and kubeconfig files of a rig.
//
// Every key is new, ECDSA P-256, and readable only by root. All files are in one folder. Certificates are valid for
// one year, beginning one hour before their creation, so that a clock that is slightly late accepts them.
package pki
