"""All products between a layer's attention and the next layer's, in one launch of CTAs that stay."""

from pallas_kernels.layer_products.config import LayerProductsConfig as LayerProductsConfig
from pallas_kernels.layer_products.hopper import layer_products as layer_products
