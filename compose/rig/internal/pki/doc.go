// Package pki makes the certificates, keys and kubeconfig files of one rig.
//
// Input: the folder, the addresses under which the API server is reached and
// the node's name. Output: a folder of PEM files and the kubeconfig files of
// everybody who talks to the API server. Guarantees: every key is new, ECDSA
// P-256, and readable by root only; nothing is written outside the folder;
// certificates are valid for a year from an hour before they were made, so
// that a clock that is a little late still accepts them.
package pki
