package credentialplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	kubeletv1 "k8s.io/kubelet/config/v1"
	"k8s.io/kubelet/pkg/apis/credentialprovider"

	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/internal/shares"
	"github.com/microlet/microlet/services/podsync/internal/images/internal/keyring"
)

// Options of Plugins.
type Options struct {
	Config *Config
	// BinDir holds the programs.
	BinDir   string
	Accounts Accounts
	Log      *slog.Logger
	// Metrics are registered here; nil registers none.
	Metrics prometheus.Registerer
}

// maxRunning is how many processes of plugins run at one time. A pod may name any number of images of a plugin.
const maxRunning = 8

// Plugins are those of the node, in the order of the configuration.
type Plugins struct {
	plugins []*plugin
	log     *slog.Logger
	// running has a place for each process, which namespaces share.
	running *shares.Places
}

// plugin is one of them.
type plugin struct {
	name     string
	images   []string
	lifetime time.Duration
	tokens   *kubeletv1.ServiceAccountTokenAttributes // nil: it is given none
	accounts Accounts
	program  *program
	cache    cache
	flights  flights
	running  *shares.Places
}

// New returns the plugins of a configuration from Load. None is run yet.
func New(o Options) (*Plugins, error) {
	m, err := newMetrics(o.Metrics, o.Config.Hash)
	if err != nil {
		return nil, err
	}
	p := &Plugins{log: o.Log, running: shares.New(maxRunning)}
	for i := range o.Config.Providers {
		c := &o.Config.Providers[i]
		p.plugins = append(p.plugins, &plugin{
			name: c.Name, images: c.MatchImages, lifetime: c.DefaultCacheDuration.Duration, tokens: c.TokenAttributes,
			accounts: o.Accounts,
			program:  newProgram(filepath.Join(o.BinDir, c.Name), c, m),
			cache:    cache{m: map[cacheKey]cached{}, purged: time.Now()},
			flights:  flights{m: map[string]*flight{}},
			running:  p.running,
		})
	}
	return p, nil
}

// Lookup returns credentials for a pod's pull of an image, by the image's full name without tag and digest. Its error
// is ctx's.
func (p *Plugins) Lookup(ctx context.Context, image string, pod *v1.Pod) ([]keyring.Auth, error) {
	ring := &keyring.Keyring{}
	for _, plugin := range p.plugins {
		owner, auths, err := plugin.credentials(ctx, image, pod)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			p.log.Warn("no credentials from the plugin for image pulls", "plugin", plugin.name, "image", image,
				logkey.Pod, pod.Namespace+"/"+pod.Name, "serviceAccount", pod.Spec.ServiceAccountName, logkey.Err, err)
			continue
		}
		ring.Add(owner, auths)
	}
	return ring.Lookup(image), nil
}

// credentials returns what is kept for the image and the pod, or what the plugin answers. It is nothing for an image
// that is not the plugin's.
func (p *plugin) credentials(ctx context.Context, image string, pod *v1.Pod) (keyring.Owner, map[string]keyring.Auth,
	error) {
	if !slices.ContainsFunc(p.images, func(pattern string) bool { return keyring.Match(pattern, image) }) {
		return keyring.Owner{}, nil, nil
	}
	id, ok, err := identify(ctx, p.accounts, p.tokens, pod)
	if err != nil || !ok {
		return keyring.Owner{}, nil, err
	}
	if auths, ok := p.cache.get(image, id.cacheKey); ok {
		return id.owner, auths, nil
	}
	answer, err := p.flights.do(ctx, id.flightKey(image), func(ctx context.Context) (*response, error) {
		release, err := p.running.Take(ctx, pod.Namespace)
		if err != nil {
			return nil, err
		}
		defer release()
		return p.program.ask(ctx, &credentialprovider.CredentialProviderRequest{
			Image: image, ServiceAccountToken: id.token, ServiceAccountAnnotations: id.annotations,
		})
	})
	if err != nil {
		return keyring.Owner{}, nil, fmt.Errorf("failed to get credential from external registry credential provider: %w",
			err)
	}
	auths, err := p.take(answer, image, &id)
	return id.owner, auths, err
}

// take returns the credentials of an answer, and keeps them as long as they may be.
func (p *plugin) take(answer *response, image string, id *identity) (map[string]keyring.Auth, error) {
	if p.echoes(answer, id.token) {
		return nil, errors.New("credential provider plugin returned the service account token as the password which is " +
			"not allowed when service account cache type is not set to 'Token'")
	}
	scope, ok := scopeOf(answer.CacheKeyType, image)
	if !ok {
		return nil, fmt.Errorf("credential provider plugin did not return a valid cacheKeyType: %s", answer.CacheKeyType)
	}
	auths := make(map[string]keyring.Auth, len(answer.Auth))
	for registry, a := range answer.Auth {
		auths[registry] = keyring.Auth{Username: a.Username, Password: a.Password}
	}
	lifetime := p.lifetime
	if answer.CacheDuration != nil {
		lifetime = answer.CacheDuration.Duration
	}
	if lifetime > 0 {
		p.cache.set(scope, id.cacheKey, auths, lifetime)
	}
	return auths, nil
}

// echoes reports whether the plugin returned the token that it was given, although credentials are kept for longer
// than the token.
func (p *plugin) echoes(answer *response, token string) bool {
	if token == "" || p.tokens.CacheType == kubeletv1.TokenServiceAccountTokenCacheType {
		return false
	}
	for a := range maps.Values(answer.Auth) {
		if a.Password == token {
			return true
		}
	}
	return false
}
