package clientcert

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Credentials checks kubeconfigs.
type Credentials struct{}

// Check reports why no client can be made of a kubeconfig. The error does not name the file. If a replacement of the
// client certificate in certDir was cut off, that certificate may be missing; with an empty certDir it may not.
func (Credentials) Check(kubeconfig, certDir string) error {
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return errors.New("the file is no kubeconfig" + yamlLine(err))
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return err
	}
	if clientcmdapi.IsConfigEmpty(config) {
		return errors.New("the file is empty")
	}
	if certDir != "" && interrupted(certDir) {
		if config, _, err = Load(kubeconfig, ""); err != nil {
			return err
		}
	}
	err = clientcmd.ConfirmUsable(*config, "")
	if err == nil {
		_, err = clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	}
	if err != nil {
		return fmt.Errorf("the kubeconfig cannot be used: %w", err)
	}
	return nil
}

// Renewed reports whether the client certificate of a kubeconfig is one that is renewed in certDir.
func (Credentials) Renewed(kubeconfig, certDir string) bool {
	config, files, err := Load(kubeconfig, certDir)
	if err != nil {
		return false
	}
	_, _, embedded := Embedded(config) // the start puts it into certDir
	return embedded || files != nil && files.Certificate == Path(certDir)
}

// interrupted reports whether a replacement of the client certificate was cut off between its two steps. The link to
// the certificate is then missing until who replaces it starts again.
func interrupted(certDir string) bool {
	_, err := os.Lstat(Path(certDir))
	info, next := os.Lstat(Next(Path(certDir)))
	return errors.Is(err, fs.ErrNotExist) && next == nil && info.Mode().Type() == fs.ModeSymlink
}

// yamlLine is where a YAML parser stopped, if the parser reports it.
func yamlLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if i := strings.Index(text, "yaml: line "); i >= 0 {
		return ": " + text[i:]
	}
	return ""
}
