package criconfig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/microlet/microlet/services/internal/expansion"
	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/criconfig/internal/envfile"
	"github.com/microlet/microlet/services/podsync/internal/pod/downward"
	volume "github.com/microlet/microlet/services/podsync/internal/volumes"
)

// Objects gets what an environment names. An error for which apierrors.IsNotFound holds
// means that there is none.
type Objects interface {
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
}

// Services gives the variables that describe Services.
type Services interface {
	Synced() bool
	Env(namespace string, links bool) (map[string]string, error)
}

// environment is a container's variables, in the order in which they came first.
type environment struct {
	names  []string
	values map[string]string
	// strings are what the variables and the words of the container take together.
	strings expansion.Strings
	files   envfile.Reader
}

// set gives a variable its value, or returns an error if the variables are too many with it.
func (e *environment) set(name, value string) error {
	if old, ok := e.values[name]; ok {
		e.strings.Remove(entry(name, old))
	} else {
		e.names = append(e.names, name)
	}
	e.values[name] = value
	return e.strings.Add(entry(name, value))
}

// grant adds the variables that device plugins set, before those of the container, which replace them.
func (e *environment) grant(variables map[string]string) error {
	own := e.names
	e.names = nil
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if _, ok := e.values[name]; ok {
			continue
		}
		if err := e.set(name, variables[name]); err != nil {
			return fmt.Errorf("variable %s of a device plugin: %w", name, err)
		}
	}
	e.names = append(e.names, own...)
	return nil
}

// entry is how long a variable is in the environment, as NAME=VALUE.
func entry(name, value string) int { return len(name) + len("=") + len(value) }

func (e *environment) list() ([]*runtimeapi.KeyValue, error) {
	all := make([]*runtimeapi.KeyValue, 0, len(e.names))
	for _, name := range e.names {
		if size := entry(name, e.values[name]); size > expansion.MaxString() {
			return nil, fmt.Errorf("env %s: %d bytes with the name, at most %d are possible", name, size,
				expansion.MaxString())
		}
		all = append(all, &runtimeapi.KeyValue{Key: name, Value: []byte(e.values[name])})
	}
	return all, nil
}

// expand returns the words of the container's command or args.
func (e *environment) expand(field string, words []string) ([]string, error) {
	expanded, err := e.strings.Words(words, func(name string) (string, bool) {
		value, ok := e.values[name]
		return value, ok
	})
	if err != nil {
		return nil, fmt.Errorf("%s%w", field, err)
	}
	return expanded, nil
}

// expandPath expands a text in which every reference must have a value that is not empty: without one part, it would be
// another path.
func (e *environment) expandPath(text string) (string, error) {
	missing := map[string]bool{}
	expanded, err := expansion.Expand(text, func(name string) (string, bool) {
		value := e.values[name]
		if value == "" {
			missing[name] = true
		}
		return value, true
	}, expansion.MaxPath)
	switch {
	case len(missing) > 0:
		return "", fmt.Errorf("missing value for %s", strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
	case err != nil:
		return "", fmt.Errorf("subPathExpr: %w", err)
	}
	return expanded, nil
}

// environment makes a container's variables. Those of env replace those of envFrom. Variables that describe Services
// are added unless they are set.
func (b *Builder) environment(ctx context.Context, p *v1.Pod, c *v1.Container, a downward.Addresses,
	volumes map[string]volume.Mounted) (*environment, error) {
	static := podutil.IsStatic(p)
	if !static && !b.Services.Synced() {
		return nil, errors.New("services have not yet been read at least once, cannot construct envvars")
	}
	links := p.Spec.EnableServiceLinks == nil || *p.Spec.EnableServiceLinks
	services, err := b.Services.Env(p.Namespace, links)
	if err != nil {
		return nil, err
	}
	e := &environment{values: map[string]string{}}
	for i := range c.EnvFrom {
		if err := b.setFrom(ctx, e, p.Namespace, &c.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	known := func(name string) (string, bool) {
		value, ok := e.values[name]
		if !ok {
			value, ok = services[name]
		}
		return value, ok
	}
	for i := range c.Env {
		v := &c.Env[i]
		var err error
		value, set := v.Value, true
		if value != "" || v.ValueFrom == nil {
			if value, err = expansion.Expand(value, known, expansion.MaxString()-entry(v.Name, "")); err != nil {
				err = fmt.Errorf("env %s: %w", v.Name, err)
			}
		} else {
			value, set, err = b.valueFrom(ctx, p, c, v, a, volumes, &e.files)
		}
		if err != nil {
			return nil, err
		}
		if !set {
			continue
		}
		if err := e.set(v.Name, value); err != nil {
			return nil, fmt.Errorf("env %s: %w", v.Name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if _, ok := e.values[name]; ok {
			continue
		}
		if err := e.set(name, services[name]); err != nil {
			return nil, fmt.Errorf("variable %s of a Service (enableServiceLinks): %w", name, err)
		}
	}
	return e, nil
}

// setFrom sets a variable for each key of a ConfigMap or Secret.
func (b *Builder) setFrom(ctx context.Context, e *environment, namespace string, from *v1.EnvFromSource) error {
	switch {
	case from.ConfigMapRef != nil:
		object, err := b.Objects.ConfigMap(ctx, namespace, from.ConfigMapRef.Name)
		if err != nil {
			return unlessOptional(err, from.ConfigMapRef.Optional)
		}
		return setAll(e, from.Prefix, object.Data)
	case from.SecretRef != nil:
		object, err := b.Objects.Secret(ctx, namespace, from.SecretRef.Name)
		if err != nil {
			return unlessOptional(err, from.SecretRef.Optional)
		}
		return setAll(e, from.Prefix, object.Data)
	}
	return nil
}

func setAll[T ~string | ~[]byte](e *environment, prefix string, data map[string]T) error {
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if err := e.set(prefix+key, string(data[key])); err != nil {
			return fmt.Errorf("envFrom, key %s: %w", key, err)
		}
	}
	return nil
}

// valueFrom reads one variable from elsewhere; set is false when it is optional and missing.
func (b *Builder) valueFrom(ctx context.Context, p *v1.Pod, c *v1.Container, v *v1.EnvVar, a downward.Addresses,
	volumes map[string]volume.Mounted, files *envfile.Reader) (value string, set bool, err error) {
	switch from := v.ValueFrom; {
	case from.FieldRef != nil:
		value, err = downward.Field(from.FieldRef, p, a)
		return value, err == nil, err
	case from.ResourceFieldRef != nil:
		value, err = downward.Resource(from.ResourceFieldRef, p, c, downward.Allocatable(p, b.Node.allocatable()))
		return value, err == nil, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		object, err := b.Objects.ConfigMap(ctx, p.Namespace, ref.Name)
		if err != nil {
			return "", false, unlessOptional(err, ref.Optional)
		}
		value, ok := object.Data[ref.Key]
		if !ok && !isTrue(ref.Optional) {
			return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, p.Namespace, ref.Name)
		}
		return value, ok, nil
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		object, err := b.Objects.Secret(ctx, p.Namespace, ref.Name)
		if err != nil {
			return "", false, unlessOptional(err, ref.Optional)
		}
		secret, ok := object.Data[ref.Key]
		if !ok && !isTrue(ref.Optional) {
			return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, p.Namespace, ref.Name)
		}
		return string(secret), ok, nil
	case from.FileKeyRef != nil:
		return fromFile(from.FileKeyRef, volumes, files)
	}
	return "", false, fmt.Errorf("env %s of container %s: its valueFrom has a source that is not built", v.Name, c.Name)
}

// fromFile reads a variable from a file that an earlier container has left in a volume.
func fromFile(ref *v1.FileKeySelector, volumes map[string]volume.Mounted,
	files *envfile.Reader) (value string, set bool, err error) {
	mounted, ok := volumes[ref.VolumeName]
	if !ok {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	value, err = files.Read(mounted.HostPath, ref.Path, ref.Key)
	if err != nil {
		return "", false, fmt.Errorf("couldn't parse env file %s of volume %s: %w", ref.Path, ref.VolumeName, err)
	}
	if value == "" && !isTrue(ref.Optional) {
		return "", false, fmt.Errorf("environment variable key %q not found in file %q of volume %q", ref.Key, ref.Path,
			ref.VolumeName)
	}
	// What is kept is the value, not the file that it is a part of.
	return strings.Clone(value), value != "", nil
}

// unlessOptional drops the error of an object that need not be there.
func unlessOptional(err error, optional *bool) error {
	if isTrue(optional) && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
