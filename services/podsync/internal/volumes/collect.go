package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/cluster/podcertificate"
	"github.com/microlet/microlet/services/podsync/internal/pod/downward"
)

// file is one file of a volume. Its content is text or data, which it shares with the object in the API.
type file struct {
	text string
	data []byte
	mode int32
	// owner of the file; nil is root.
	owner *int64
}

func (f *file) content() []byte {
	if f.text != "" {
		return []byte(f.text)
	}
	return f.data
}

// takes is the size of the file on a file system.
func (f *file) takes() int64 {
	return (int64(len(f.text)+len(f.data)) + filePage - 1) / filePage * filePage
}

// errNoMode is the error of a volume that has no defaults of the API server.
var errNoMode = errors.New("no defaultMode used, not even the default value for it")

// errTooLarge is the error of a volume whose files are too large.
var errTooLarge = errors.New("the volume is too large")

// projected gathers the files of all sources. All that is missing is reported at once.
func (m *Manager) projected(ctx context.Context, s *Spec, into *gathering) error {
	volume := s.Volume.Projected
	if volume.DefaultMode == nil {
		return errNoMode
	}
	all := attributes{*volume.DefaultMode, volume.DefaultUser}
	var errs []error
	for i := range volume.Sources {
		err := m.source(ctx, s, i, all, into)
		if errors.Is(err, errTooLarge) {
			return err
		}
		errs = append(errs, err)
	}
	return utilerrors.NewAggregate(errs)
}

// The volumes of one source are projections of it.

func (m *Manager) configMapVolume(ctx context.Context, s *Spec, into *gathering) error {
	v := s.Volume.ConfigMap
	if v.DefaultMode == nil {
		return errNoMode
	}
	return m.configMap(ctx, s.Pod,
		&v1.ConfigMapProjection{LocalObjectReference: v.LocalObjectReference, Items: v.Items, Optional: v.Optional},
		attributes{*v.DefaultMode, v.DefaultUser}, into)
}

func (m *Manager) secretVolume(ctx context.Context, s *Spec, into *gathering) error {
	v := s.Volume.Secret
	if v.DefaultMode == nil {
		return errNoMode
	}
	return m.secret(ctx, s.Pod, &v1.SecretProjection{
		LocalObjectReference: v1.LocalObjectReference{Name: v.SecretName}, Items: v.Items, Optional: v.Optional},
		attributes{*v.DefaultMode, v.DefaultUser}, into)
}

func (m *Manager) downwardVolume(_ context.Context, s *Spec, into *gathering) error {
	v := s.Volume.DownwardAPI
	if v.DefaultMode == nil {
		return errNoMode
	}
	return m.downward(s.Pod, &v1.DownwardAPIProjection{Items: v.Items}, attributes{*v.DefaultMode, v.DefaultUser}, into)
}

// attributes are those of a volume's files. Package podfields lets no pod set an owner while the feature gate for it is
// off.
type attributes struct {
	mode int32
	// owner is nil for root.
	owner *int64
}

// file gives a file these attributes, unless it has its own.
func (a attributes) file(f file, mode *int32, owner *int64) file {
	f.mode, f.owner = a.mode, a.owner
	if mode != nil {
		f.mode = *mode
	}
	if owner != nil {
		f.owner = owner
	}
	return f
}

// credential is a file for the pod's user alone, where the pod has one: the owner of the file if one is given, else the
// user that all containers run as.
func (a attributes) credential(p *v1.Pod, data []byte, owner *int64) file {
	f := a.file(file{data: data}, nil, owner)
	if f.owner == nil {
		f.owner = soleUser(p)
	}
	if f.owner != nil || fsGroup(p) != nil {
		f.mode = 0o600 // the owner may read it, and the group by its ownership of the volume
	}
	return f
}

// source gathers the files of one source of a projected volume.
func (m *Manager) source(ctx context.Context, s *Spec, index int, all attributes, into *gathering) error {
	p, source := s.Pod, &s.Volume.Projected.Sources[index]
	switch {
	case source.ServiceAccountToken != nil:
		return m.token(ctx, p, source.ServiceAccountToken, all, into)
	case source.ConfigMap != nil:
		return m.configMap(ctx, p, source.ConfigMap, all, into)
	case source.Secret != nil:
		return m.secret(ctx, p, source.Secret, all, into)
	case source.DownwardAPI != nil:
		return m.downward(p, source.DownwardAPI, all, into)
	case source.ClusterTrustBundle != nil:
		return m.trustBundle(ctx, p, source.ClusterTrustBundle, all, into)
	case source.PodCertificate != nil:
		at := podcertificate.Place{Volume: s.Volume.Name, Source: index}
		return m.certificate(ctx, p, at, source.PodCertificate, all, into)
	default:
		return errors.New("this kind of projection is not built")
	}
}

func (m *Manager) trustBundle(ctx context.Context, p *v1.Pod, s *v1.ClusterTrustBundleProjection, all attributes,
	into *gathering) error {
	anchors, err := m.opts.TrustBundles.TrustAnchors(ctx, p.UID, s)
	if err != nil {
		return err
	}
	return into.put(s.Path, all.credential(p, anchors, s.User))
}

func (m *Manager) certificate(ctx context.Context, p *v1.Pod, at podcertificate.Place, s *v1.PodCertificateProjection,
	all attributes, into *gathering) error {
	bundle, err := m.opts.Certificates.Bundle(ctx, p, at, s)
	if err != nil {
		return err
	}
	for path, data := range map[string][]byte{
		s.CredentialBundlePath: slices.Concat(bundle.Key, bundle.Chain),
		s.KeyPath:              bundle.Key,
		s.CertificateChainPath: bundle.Chain,
	} {
		if path == "" {
			continue
		}
		if err := into.put(path, all.credential(p, data, s.User)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) token(ctx context.Context, p *v1.Pod, s *v1.ServiceAccountTokenProjection, all attributes,
	into *gathering) error {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: s.ExpirationSeconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1",
			Kind:       "Pod",
			Name:       p.Name,
			UID:        p.UID,
		},
	}}
	if s.Audience != "" {
		request.Spec.Audiences = []string{s.Audience}
	}
	answer, err := m.opts.Tokens.Token(ctx, p.Namespace, p.Spec.ServiceAccountName, request)
	if err != nil {
		return err
	}
	return into.put(s.Path, all.credential(p, []byte(answer.Status.Token), s.User))
}

func (m *Manager) configMap(ctx context.Context, p *v1.Pod, s *v1.ConfigMapProjection, all attributes,
	into *gathering) error {
	optional := s.Optional != nil && *s.Optional
	object, err := m.opts.Objects.ConfigMap(ctx, p.Namespace, s.Name)
	if optional && apierrors.IsNotFound(err) {
		object, err = &v1.ConfigMap{}, nil
	}
	if err != nil {
		return err
	}
	keys := make(map[string]file, len(object.BinaryData)+len(object.Data))
	for k, data := range object.BinaryData {
		keys[k] = file{data: data}
	}
	for k, text := range object.Data {
		keys[k] = file{text: text}
	}
	return pick(keys, s.Items, all, optional, "configmap references non-existent config key: %s", into)
}

func (m *Manager) secret(ctx context.Context, p *v1.Pod, s *v1.SecretProjection, all attributes,
	into *gathering) error {
	optional := s.Optional != nil && *s.Optional
	object, err := m.opts.Objects.Secret(ctx, p.Namespace, s.Name)
	if optional && apierrors.IsNotFound(err) {
		object, err = &v1.Secret{}, nil
	}
	if err != nil {
		return err
	}
	keys := make(map[string]file, len(object.Data))
	for k, data := range object.Data {
		keys[k] = file{data: data}
	}
	return pick(keys, s.Items, all, optional, "references non-existent secret key: %s", into)
}

// pick takes the keys that items name to the paths that they name, or all keys.
func pick(keys map[string]file, items []v1.KeyToPath, all attributes, optional bool, missing string,
	into *gathering) error {
	if len(items) == 0 {
		for k, f := range keys {
			if err := into.put(k, all.file(f, nil, nil)); err != nil {
				return err
			}
		}
		return nil
	}
	for _, item := range items {
		f, ok := keys[item.Key]
		if !ok {
			if optional {
				continue
			}
			return fmt.Errorf(missing, item.Key)
		}
		if err := into.put(item.Path, all.file(f, item.Mode, item.User)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) downward(p *v1.Pod, s *v1.DownwardAPIProjection, all attributes, into *gathering) error {
	var errs []error
	for i := range s.Items {
		item := &s.Items[i]
		text, err := m.downwardText(p, item)
		errs = append(errs, err)
		if err := into.put(item.Path, all.file(file{text: text}, item.Mode, item.User)); err != nil {
			return err
		}
	}
	return utilerrors.NewAggregate(errs)
}

func (m *Manager) downwardText(p *v1.Pod, item *v1.DownwardAPIVolumeFile) (string, error) {
	if item.FieldRef != nil {
		return downward.Metadata(item.FieldRef.FieldPath, p)
	}
	if item.ResourceFieldRef == nil {
		return "", fmt.Errorf("downwardAPI item %s names neither fieldRef nor resourceFieldRef", item.Path)
	}
	return downward.Resource(item.ResourceFieldRef, p, nil, m.opts.Allocatable())
}

// soleUser is the one user that all containers of the pod run as, or nil. It may own a token that no other user can
// read.
func soleUser(p *v1.Pod) *int64 {
	var sole *int64
	of := func(c *v1.Container) *int64 {
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			return c.SecurityContext.RunAsUser
		}
		if p.Spec.SecurityContext != nil {
			return p.Spec.SecurityContext.RunAsUser
		}
		return nil
	}
	for c := range podutil.Containers(&p.Spec) {
		user := of(c)
		if user == nil || sole != nil && *sole != *user {
			return nil
		}
		sole = user
	}
	return sole
}
