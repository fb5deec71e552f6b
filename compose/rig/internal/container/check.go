package container

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/microlet/microlet/compose/rig/internal/health"
)

// Check asks the program at the address whether it works.
func Check(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return fmt.Errorf("check %q: %w", address, err)
	}
	switch u.Scheme {
	case "http", "https":
		return health.HTTP(ctx, address)
	case "unix":
		return checkRuntime(ctx, address)
	case "file":
		_, err := os.Stat(u.Path)
		return err
	}
	return fmt.Errorf("check %q: give an address with http, https, unix or file", address)
}

// checkRuntime asks a container runtime for its conditions.
func checkRuntime(ctx context.Context, endpoint string) error {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return health.Runtime(ctx, conn)
}

// CheckNode asks whether a pod can be created in the namespace default, and whether the Node is Ready.
func CheckNode(ctx context.Context, kubeconfig, node string) error {
	client, err := clientOf(kubeconfig)
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return err
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{}); err != nil {
		return err
	}
	n, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			return nil
		}
		return fmt.Errorf("node %s is not Ready: %s: %s", node, c.Reason, c.Message)
	}
	return errors.New("the Node has no condition Ready yet")
}

// CheckDeployment asks whether all pods of a Deployment, namespace/name, are of its newest version and available.
func CheckDeployment(ctx context.Context, kubeconfig, name string) error {
	namespace, short, ok := strings.Cut(name, "/")
	if !ok {
		return fmt.Errorf("check Deployment %q: give namespace/name", name)
	}
	client, err := clientOf(kubeconfig)
	if err != nil {
		return err
	}
	d, err := client.AppsV1().Deployments(namespace).Get(ctx, short, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want, s := int32(1), d.Status
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	if s.ObservedGeneration < d.Generation || s.UpdatedReplicas != want || s.AvailableReplicas != want {
		return fmt.Errorf("deployment %s has %d of %d pods available, %d of them new", name, s.AvailableReplicas, want,
			s.UpdatedReplicas)
	}
	return nil
}

func clientOf(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	return client, nil
}
