package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/compose/rig"
	"github.com/microlet/microlet/compose/rig/internal/images"
)

// nodeSuiteUser is the service account that the suite of the node signs in
// as: it takes a token and no certificate.
const nodeSuiteUser = "node-suite"

// serverPatience is how long the agent's server may take to answer on a node that is Ready.
const serverPatience = 2 * time.Minute

// signIn makes the suite's account, which may do all, and returns a token for
// it.
func signIn(ctx context.Context, client kubernetes.Interface, lifetime time.Duration) (string, error) {
	accounts := client.CoreV1().ServiceAccounts(metav1.NamespaceSystem)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: nodeSuiteUser}}
	if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("make the suite's account: %w", err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: nodeSuiteUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{
			Kind:      rbacv1.ServiceAccountKind,
			Namespace: metav1.NamespaceSystem,
			Name:      nodeSuiteUser,
		}},
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("make the suite's account: %w", err)
	}
	const shortest = 10 * time.Minute // what the API server grants at least
	seconds := int64(max(lifetime, shortest).Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	token, err := accounts.CreateToken(ctx, nodeSuiteUser, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("make the suite's token: %w", err)
	}
	return token.Status.Token, nil
}

// systemSpec is what the suite demands of the machine before it runs. Its own
// one demands what the rig does without, such as the kernel's configuration in
// a file.
const systemSpec = "os: Linux\nkernelSpec: {versions: ['^[4-9]\\.', '^[1-9][0-9]\\.']}\n"

// connectNode returns the flags of the suite of the node. The agent runs
// already. The suite looks for the agent at the machine's loopback address,
// where it finds it until end is called.
func (r Run) connectNode(ctx context.Context, p place) (flags []string, end func(), err error) {
	config, err := r.Instance.RESTConfig()
	if err != nil {
		return nil, nil, err
	}
	client, err := r.Instance.Client()
	if err != nil {
		return nil, nil, err
	}
	token, err := signIn(ctx, client, 2*r.Timeout)
	if err != nil {
		return nil, nil, err
	}
	spec := path.Join(p.dir(), "system.yaml")
	if err := p.write(ctx, spec, []byte(systemSpec), 0o644); err != nil {
		return nil, nil, fmt.Errorf("run the suite: %w", err)
	}
	if err := r.shareConfig(ctx, client, p); err != nil {
		return nil, nil, err
	}
	if err := p.program(ctx, r.Instance.Binary(rig.Ctr), rig.Ctr); err != nil {
		return nil, nil, fmt.Errorf("run the suite: %w", err)
	}
	if err := nameByDigest(ctx, p, r.Instance.RuntimeSocket(), r.Instance.Registry()); err != nil {
		return nil, nil, err
	}
	if end, err = p.serve(ctx); err != nil {
		return nil, nil, fmt.Errorf("run the suite: %w", err)
	}
	return []string{
		"--host=" + config.Host, "--bearer-token=" + token, "--node-name=" + r.Instance.NodeName(),
		"--dns-domain=cluster.local", "--start-services=false", "--stop-services=false",
		"--container-runtime-endpoint=" + r.Instance.RuntimeEndpoint(), "--system-spec-file=" + spec,
		// It would pull the images of all specs, of which the registry lacks some.
		"--prepull-images=false", "--disable-log-dump=true",
		// It looks for the agent's log there.
		"--report-dir=" + p.dir(), "--standalone-mode=" + strconv.FormatBool(r.Alone),
	}, end, nil
}

// nameByDigest gives the node's runtime images.StandIn under the name images.ByDigest, which a pull could not. It is
// pinned, so that no garbage collection takes it away.
func nameByDigest(ctx context.Context, p place, socket, registry string) error {
	_, name, _ := strings.Cut(images.StandIn, "/")
	from := registry + "/" + name
	for _, args := range [][]string{
		{"pull", "--local", "--plain-http", "--label=io.cri-containerd.pinned=pinned", from},
		{"tag", "--local", "--force", from, images.ByDigest},
		{"remove", from},
	} {
		var out bytes.Buffer
		ctr := []string{path.Join(p.dir(), rig.Ctr), "--address=" + socket, "--namespace=k8s.io", "images"}
		code, err := p.run(ctx, append(ctr, args...), &out)
		if err == nil && code != 0 {
			err = fmt.Errorf("ctr has ended with %d: %s", code, out.Bytes())
		}
		if err != nil {
			return fmt.Errorf("give the node the image %s: %w", images.ByDigest, err)
		}
	}
	return nil
}

// agentLog is where specs look for the agent's log, in the folder of the run.
const agentLog = "kubelet.log"

// shareConfig lets specs change the configuration of the agent: the suite reads and writes a file, with which the
// agent starts from then on. The file has every field, because the suite takes a missing one for its zero.
func (r Run) shareConfig(ctx context.Context, client kubernetes.Interface, p place) error {
	if err := p.link(ctx, r.Instance.KubeletConfig(), "kubelet-config"); err != nil {
		return fmt.Errorf("run the suite: %w", err)
	}
	if r.Alone {
		return nil // who asks it for its configuration gets it, but not through the API server
	}
	// A node can be Ready shortly before its server answers.
	var answer []byte
	var last error
	err := wait.PollUntilContextTimeout(ctx, time.Second, serverPatience, true, func(ctx context.Context) (bool, error) {
		answer, last = client.CoreV1().RESTClient().Get().Resource("nodes").Name(r.Instance.NodeName()).
			SubResource("proxy").Suffix("configz").DoRaw(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("read the agent's configuration: %w", errors.Join(err, last))
	}
	text, err := configFile(answer)
	if err != nil {
		return err
	}
	if err := p.write(ctx, r.Instance.KubeletConfig(), text, 0o644); err != nil {
		return fmt.Errorf("write the agent's configuration: %w", err)
	}
	return nil
}

// configFile makes a KubeletConfiguration of what /configz answers.
func configFile(configz []byte) ([]byte, error) {
	var answer map[string]map[string]any
	if err := json.Unmarshal(configz, &answer); err != nil {
		return nil, fmt.Errorf("read the agent's configuration: %w", err)
	}
	config := answer["kubeletconfig"]
	if config == nil {
		return nil, errors.New("read the agent's configuration: it has no kubeletconfig")
	}
	config["apiVersion"], config["kind"] = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
	return json.MarshalIndent(config, "", "  ")
}
