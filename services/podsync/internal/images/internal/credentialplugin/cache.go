package credentialplugin

import (
	"strings"
	"sync"
	"time"

	"k8s.io/kubelet/pkg/apis/credentialprovider"

	"github.com/microlet/microlet/services/podsync/internal/images/internal/keyring"
)

// purgeEvery is how often what has expired is dropped without a request for it.
const purgeEvery = 15 * time.Minute

// global is the scope of credentials for all images; no image has this name.
const global = "<global>"

// cacheKey is what credentials are good for, and which pods may use them.
type cacheKey struct{ scope, account string }

type cached struct {
	auths   map[string]keyring.Auth
	expires time.Time
}

// cache keeps the credentials of one plugin.
type cache struct {
	mu     sync.Mutex
	m      map[cacheKey]cached
	purged time.Time
}

// get returns what is kept for the image, for its registry, or for all images.
func (c *cache) get(image, account string) (map[string]keyring.Auth, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.After(c.purged.Add(purgeEvery)) {
		for k, e := range c.m {
			if now.After(e.expires) {
				delete(c.m, k)
			}
		}
		c.purged = now
	}
	for _, scope := range []string{image, registryOf(image), global} {
		if e, ok := c.m[cacheKey{scope, account}]; ok && !now.After(e.expires) {
			return e.auths, true
		}
	}
	return nil, false
}

func (c *cache) set(scope, account string, auths map[string]keyring.Auth, lifetime time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m[cacheKey{scope, account}] = cached{auths, time.Now().Add(lifetime)}
}

// scopeOf returns what an answer about an image is good for; false for a type that there is not.
func scopeOf(t credentialprovider.PluginCacheKeyType, image string) (string, bool) {
	switch t {
	case credentialprovider.ImagePluginCacheKeyType:
		return image, true
	case credentialprovider.RegistryPluginCacheKeyType:
		return registryOf(image), true
	case credentialprovider.GlobalPluginCacheKeyType:
		return global, true
	}
	return "", false
}

func registryOf(image string) string {
	registry, _, _ := strings.Cut(image, "/")
	return registry
}
