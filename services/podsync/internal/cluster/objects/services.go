package objects

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// apiService is the Service of the apiserver, which every pod learns of.
const apiService = "kubernetes"

// Services describes Services to pods by environment variables.
type Services struct {
	lister corelisters.ServiceLister
	synced func() bool
}

// NewServices takes the lister and HasSynced of a Service informer. A nil lister is a node
// without an apiserver: nothing to describe, and synced.
func NewServices(lister corelisters.ServiceLister, synced func() bool) *Services {
	return &Services{lister: lister, synced: synced}
}

// Synced reports whether the Services have been read at least once. Before that, no container
// may be made: it would miss KUBERNETES_SERVICE_HOST for its whole life.
func (s *Services) Synced() bool {
	return s.lister == nil || s.synced()
}

// Env returns the variables for a pod of a namespace: those of the apiserver's Service
// always, those of the other Services of its namespace if it wants links.
func (s *Services) Env(namespace string, links bool) (map[string]string, error) {
	env := map[string]string{}
	if s.lister == nil {
		return env, nil
	}
	all, err := s.lister.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list services for the environment: %w", err)
	}
	chosen := map[string]*v1.Service{}
	for _, service := range all {
		if ip := service.Spec.ClusterIP; ip == "" || ip == v1.ClusterIPNone {
			continue
		}
		if service.Namespace == metav1.NamespaceDefault && service.Name == apiService {
			// A Service of the pod's own namespace with this name wins.
			if chosen[service.Name] == nil {
				chosen[service.Name] = service
			}
		} else if links && service.Namespace == namespace {
			chosen[service.Name] = service
		}
	}
	// A_SERVICE_PORT is a variable of a and one of a-service: that of the shorter name comes last and stays.
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(chosen))) {
		describe(chosen[name], env)
	}
	return env, nil
}

// describe sets the variables of one Service: those that Kubernetes always had, and those
// that Docker's links had.
func describe(service *v1.Service, env map[string]string) {
	prefix := variable(service.Name)
	ip := service.Spec.ClusterIP
	env[prefix+"_SERVICE_HOST"] = ip
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		number := strconv.Itoa(int(port.Port))
		protocol := string(port.Protocol)
		if protocol == "" {
			protocol = string(v1.ProtocolTCP)
		}
		lower := strings.ToLower(protocol)
		url := lower + "://" + net.JoinHostPort(ip, number)
		if i == 0 {
			env[prefix+"_SERVICE_PORT"] = number
			env[prefix+"_PORT"] = url
		}
		if port.Name != "" {
			env[prefix+"_SERVICE_PORT_"+variable(port.Name)] = number
		}
		link := prefix + "_PORT_" + number + "_" + strings.ToUpper(protocol)
		env[link] = url
		env[link+"_PROTO"] = lower
		env[link+"_PORT"] = number
		env[link+"_ADDR"] = ip
	}
}

func variable(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
