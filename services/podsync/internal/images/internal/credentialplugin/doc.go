// Package credentialplugin gets credentials for image pulls from the plugins of a CredentialProviderConfig.
//
// A plugin is a program that reads a CredentialProviderRequest from its standard input and writes a
// CredentialProviderResponse. It has one minute; after that, it and its process group are killed. Each waits for its
// own pull only. Pulls of the same image share one run, and credentials are kept as long as the plugin says. A plugin
// with tokenAttributes is given a token of the pod's service account, and what it returns belongs to that account.
//
// A plugin that fails is logged and counted, and the pull goes on with other credentials or with none, as under the
// kubelet.
package credentialplugin
