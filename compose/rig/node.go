package rig

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/microlet/microlet/compose/rig/internal/process"
)

// bootstrap adds to a new control plane what kubeadm would add, and waits
// until pods can be created in the namespace default.
func (i *Instance) bootstrap(ctx context.Context) error {
	client, err := i.Client()
	if err != nil {
		return err
	}
	// A node may have its own client certificate renewed without approval.
	for name, role := range map[string]string{
		"rig:node-autoapprove-certificate-rotation": "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
	} {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}},
		}
		_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("bind role %s: %w", role, err)
		}
	}
	return i.await(ctx, ControllerManager, func(ctx context.Context) error {
		if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		_, err := client.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
}

// WaitNodeReady waits until the Node has the condition Ready, true, and the
// agent as it runs now has renewed the Node's Lease: a Ready that was left by
// the agent's life before does not count.
func (i *Instance) WaitNodeReady(ctx context.Context) error {
	return i.waitNodeReady(ctx, i.checkLease)
}

// waitNodeReady waits until the Node is Ready and the other check succeeds.
func (i *Instance) waitNodeReady(ctx context.Context, check func(context.Context, kubernetes.Interface) error) error {
	client, err := i.Client()
	if err != nil {
		return err
	}
	begin := time.Now()
	err = i.await(ctx, AgentProgram, func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, i.NodeName(), metav1.GetOptions{})
		if err != nil {
			return i.explain(err)
		}
		for _, c := range node.Status.Conditions {
			if c.Type != corev1.NodeReady {
				continue
			}
			if c.Status != corev1.ConditionTrue {
				return fmt.Errorf("node %s is not Ready: %s: %s", node.Name, c.Reason, c.Message)
			}
			return check(ctx, client)
		}
		return fmt.Errorf("node %s has no condition Ready", node.Name)
	})
	if err != nil {
		return err
	}
	i.printf("node %s is Ready after %s", i.NodeName(), time.Since(begin).Round(100*time.Millisecond))
	return nil
}

// explain adds to an error that the agent does not stay alive, if so.
func (i *Instance) explain(err error) error {
	status, unknown := i.AgentStatus()
	if unknown != nil || status.Starts < 2 {
		return err
	}
	return fmt.Errorf("%w; the agent was started %d times, its last life ended with: %s", err, status.Starts,
		status.LastExit)
}

func (i *Instance) checkLease(ctx context.Context, client kubernetes.Interface) error {
	status, err := i.AgentStatus()
	if err != nil {
		return err
	}
	lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, i.NodeName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if renewed := lease.Spec.RenewTime; renewed == nil || renewed.Time.Before(status.StartedAt) {
		return fmt.Errorf("the lease of node %s was not renewed since its agent started", i.NodeName())
	}
	return nil
}

// await calls check until it succeeds, as long as the program lives.
func (i *Instance) await(ctx context.Context, program string, check func(context.Context) error) error {
	log := i.Log(program)
	if i.isUnit(program) {
		program, log = Machine, i.machineConsole()
	}
	i.mu.Lock()
	p, ok := i.r.Processes[program]
	i.mu.Unlock()
	if !ok {
		return errors.New(program + " was never started")
	}
	ctx, cancel := context.WithTimeout(ctx, readiness)
	defer cancel()
	return process.Await(ctx, p, log, check)
}
