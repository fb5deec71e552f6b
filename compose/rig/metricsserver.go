package rig

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/pki"
)

// MetricsServer is metrics-server, as Log and Status name it in an instance with GroupMetricsServer. It does not run
// until StartMetricsServer.
const MetricsServer = build.MetricsServer

//go:embed metricsserver.yaml
var metricsServerObjects string

// StartMetricsServer starts the real metrics-server behind the aggregation layer of the API server, and waits until
// the API serves its group. It signs in with the token of its own service account, at the nodes too. It asks the nodes
// every 10 s, the shortest period that it takes. It runs until StopMetricsServer or Down.
func (i *Instance) StartMetricsServer(ctx context.Context) error {
	if !i.hasMetricsServer() {
		return fmt.Errorf("start %s: instance %s was made without the group %s", MetricsServer, i.r.Name, GroupMetricsServer)
	}
	if err := i.registerMetricsServer(ctx); err != nil {
		return err
	}
	if err := i.writeMetricsServerKubeconfig(ctx); err != nil {
		return err
	}
	if err := i.start(ctx, MetricsServer); err != nil {
		return err
	}
	client, err := i.Client()
	if err != nil {
		return err
	}
	return i.await(ctx, MetricsServer, func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/nodes").Do(ctx).Error()
	})
}

// StopMetricsServer takes metrics-server's group out of the API and stops the program.
func (i *Instance) StopMetricsServer(ctx context.Context) error {
	return errors.Join(
		i.kubectlWith(ctx, "", "delete", "apiservice", "v1beta1.metrics.k8s.io", "--ignore-not-found"),
		i.stop(ctx, MetricsServer),
	)
}

func (i *Instance) hasMetricsServer() bool { return i.r.Binaries[MetricsServer] != "" }

// registerMetricsServer makes or changes its objects.
func (i *Instance) registerMetricsServer(ctx context.Context) error {
	ca, err := os.ReadFile(filepath.Join(i.pkiDir(), pki.CA))
	if err != nil {
		return fmt.Errorf("register %s: %w", MetricsServer, err)
	}
	objects := strings.NewReplacer(
		"${PORT}", strconv.Itoa(i.r.Ports.MetricsServer),
		"${CA}", base64.StdEncoding.EncodeToString(ca),
	).Replace(metricsServerObjects)
	return i.kubectlWith(ctx, objects, "apply", "-f", "-")
}

// kubectlWith runs kubectl as the administrator.
func (i *Instance) kubectlWith(ctx context.Context, input string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, readiness)
	defer cancel()
	cmd := exec.CommandContext(ctx, i.Kubectl(), append([]string{"--kubeconfig=" + i.Kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// writeMetricsServerKubeconfig has the API server issue a token for its service account.
func (i *Instance) writeMetricsServerKubeconfig(ctx context.Context) error {
	client, err := i.Client()
	if err != nil {
		return err
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(
		86400))}}
	token, err := client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).
		CreateToken(ctx, MetricsServer, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make a token for %s: %w", MetricsServer, err)
	}
	c := clientcmdapi.NewConfig()
	c.Clusters[i.r.Name] = &clientcmdapi.Cluster{
		Server: i.server(), CertificateAuthority: filepath.Join(i.pkiDir(), pki.CA),
	}
	c.AuthInfos[MetricsServer] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	c.Contexts[i.r.Name] = &clientcmdapi.Context{Cluster: i.r.Name, AuthInfo: MetricsServer}
	c.CurrentContext = i.r.Name
	if err := clientcmd.WriteToFile(*c, pki.Kubeconfig(i.pkiDir(), MetricsServer)); err != nil {
		return fmt.Errorf("write kubeconfig of %s: %w", MetricsServer, err)
	}
	return nil
}

func (i *Instance) metricsServerArgs() []string {
	certs := i.pkiDir()
	kubeconfig := pki.Kubeconfig(certs, MetricsServer)
	return []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(i.r.Ports.MetricsServer),
		"--tls-cert-file=" + pki.Cert(certs, pki.MetricsServer),
		"--tls-private-key-file=" + pki.Key(certs, pki.MetricsServer),
		// The node signs its own serving certificate, and its name is in no DNS.
		"--kubelet-insecure-tls", "--kubelet-preferred-address-types=InternalIP",
		"--metric-resolution=10s", "--kubelet-request-timeout=9s",
	}
}
