package kubeletconfig

import (
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// checkKubeconfig refuses a kubeconfig that no client can be made of, as the kubelet does at its start.
func checkKubeconfig(p *problems, path string) {
	const remedy = "put a kubeconfig with the node's client credentials there"
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		p.add("--kubeconfig", path, "it is no file", remedy)
		return
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		p.add("--kubeconfig", path, "the file is no kubeconfig"+yamlLine(err), remedy)
		return
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		p.add("--kubeconfig", path, oneLine(err), remedy)
		return
	}
	if clientcmdapi.IsConfigEmpty(config) {
		p.add("--kubeconfig", path, "the file is empty", remedy)
		return
	}
	err = clientcmd.ConfirmUsable(*config, "")
	if err == nil {
		_, err = clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	}
	if err != nil {
		p.add("--kubeconfig", path, "the kubeconfig cannot be used: "+oneLine(err), remedy)
	}
}

// yamlLine is where a YAML parser stopped, if the parser reports it.
func yamlLine(err error) string {
	text := oneLine(err)
	if i := strings.Index(text, "yaml: line "); i >= 0 {
		return ": " + text[i:]
	}
	return ""
}
