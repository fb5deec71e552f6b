package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/microlet/microlet/compose/rig"
)

// Names of the demo's Deployment and of the node's own pod.
const (
	demoName = "hello"
	ownName  = "hello-standalone"
)

// demo shows that the node works.
type demo struct {
	wanted bool
	begin  time.Time
}

func (d demo) elapsed() time.Duration { return time.Since(d.begin).Round(100 * time.Millisecond) }

func demoSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{
		Name: demoName, Image: rig.BusyboxImage,
		Command: []string{"sh", "-c",
			"trap 'exit 0' TERM; while :; do echo hello from $(hostname); sleep 5 & wait; done"},
	}}}
}

// runPod runs a pod of the node's own, as microlet run-pod does.
func (d demo) runPod(ctx context.Context, i *rig.Instance, out io.Writer) error {
	pod := corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: ownName},
		Spec:       demoSpec(),
	}
	text, err := yaml.Marshal(pod)
	if err != nil {
		return fmt.Errorf("write the demo's pod: %w", err)
	}
	file := filepath.Join(i.Dir(), ownName+".yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write the demo's pod: %w", err)
	}
	said, err := exec.CommandContext(ctx, i.Microlet(), "run-pod", file, "--wait", "--runtime-dir="+i.RuntimeDir()).
		CombinedOutput()
	if err != nil {
		return fmt.Errorf("run the demo's pod: %w: %s", err, strings.TrimSpace(string(said)))
	}
	_, _ = fmt.Fprintf(out, "pod %s-%s is Running without a control plane, %s after the command\n", ownName, i.NodeName(),
		d.elapsed())
	return nil
}

// runDeployment shows a Deployment, its pods and their addresses.
func (d demo) runDeployment(ctx context.Context, i *rig.Instance, out io.Writer) error {
	if i.Agent() == rig.AgentNone {
		return errors.New("--demo needs an agent")
	}
	client, err := i.Client()
	if err != nil {
		return err
	}
	replicas := int32(2)
	labels := map[string]string{"app": demoName}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: demoName},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       demoSpec(),
			},
		},
	}
	if _, err := client.AppsV1().Deployments("default").Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the demo's deployment: %w", err)
	}
	const patience = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	printed := map[string]bool{}
	for {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + demoName})
		if err != nil {
			return fmt.Errorf("watch the demo's pods: %w", err)
		}
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" && !printed[p.Name] {
				printed[p.Name] = true
				_, _ = fmt.Fprintf(out, "pod %s is Running with address %s, %s after the command\n", p.Name,
					p.Status.PodIP, d.elapsed())
			}
		}
		if len(printed) >= int(replicas) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the demo's pods are not Running: %w: look at them with rig kubectl --name %s describe "+
				"pods, and at %s", ctx.Err(), i.Name(), i.Log(rig.AgentProgram))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
